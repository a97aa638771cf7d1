package envoy

import (
	"regexp"
	"testing"
)

// The name in a peer's certificate is its last CN, compared as a whole, whatever else its subject holds.
func TestAllowedNamesAreTheLastCommonNameAndNothingElse(t *testing.T) {
	re := regexp.MustCompile(subjectRegex([]string{"front-proxy-client", `o'd, #1 + "é"`}))
	for subject, want := range map[string]bool{
		"CN=front-proxy-client":                           true,
		"O=cluster,CN=front-proxy-client":                 true,
		"O=cluster,C=DE,CNX=a,OU=C,CN=front-proxy-client": true,
		`O=a\,CN\=b\\,CN=front-proxy-client`:              true,
		"CN=front-proxy-client,O=cluster":                 true,
		"CN=front-proxy-client+O=cluster":                 true,
		"O=cluster+CN=front-proxy-client":                 true,
		"CN=front-proxy-client,CN=other":                  true, // the last one comes first
		`CN=o'd\, #1 \+ \"\C3\A9\"`:                       true,
		"CN=other,CN=front-proxy-client":                  false,
		"CN=,CN=front-proxy-client":                       false,
		"O=a,CN=other,O=b,CN=front-proxy-client":          false,
		"front-proxy-client":                              false, // an alternative name
		"x,CN=front-proxy-client":                         false,
		"CN=front-proxy-client2":                          false,
		"CN=xfront-proxy-client":                          false,
		`O=a\,CN=front-proxy-client`:                      false,
		`O=a\\\,CN=front-proxy-client`:                    false,
		`O=a\+CN=front-proxy-client`:                      false,
		`CN=front-proxy-client\,x`:                        false,
		`CN=front-proxy-client\00`:                        false,
		"OCN=front-proxy-client":                          false,
		"O=CN=front-proxy-client":                         false,
		"CN=front-proxyXclient":                           false,
		"CN=other,SERIALNUMBER=front-proxy-client":        false,
		"": false,
	} {
		if got := re.MatchString(subject); got != want {
			t.Errorf("%s: allowed is %v, want %v", subject, got, want)
		}
	}
}
