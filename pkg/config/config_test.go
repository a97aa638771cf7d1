package config

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"xds-server/pkg/config/certtest"
	"xds-server/pkg/peers"
)

// fixture is a directory with everything that a good configuration names.
type fixture struct {
	t          *testing.T
	dir        string
	ca, fp     *certtest.CA
	file       string
	good       string
	caFile     string
	fpFile     string
	cert, priv string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir()}
	f.ca, f.fp = certtest.NewCA(t, "kubernetes"), certtest.NewCA(t, "front-proxy-ca")
	cert, key := f.ca.Issue("xds-server", certtest.DNS(ServingName))
	f.caFile = certtest.Write(t, f.dir, "ca.crt", f.ca.PEM())
	f.fpFile = certtest.Write(t, f.dir, "front-proxy-ca.crt", f.fp.PEM())
	f.cert = certtest.Write(t, f.dir, "xds-server.crt", cert)
	f.priv = certtest.Write(t, f.dir, "xds-server.key", key)
	f.file = filepath.Join(f.dir, "config.yaml")
	f.good = fmt.Sprintf(`
servers:
- {name: cp-1, address: "10.0.0.11:6445"}
- {name: cp-2, address: "10.0.0.12:6443", direct: true}
peerCAFile: %s
tlsCertFile: %s
tlsPrivateKeyFile: %s
socket: %s/xds.sock
`, f.caFile, f.cert, f.priv, f.dir)
	return f
}

// load writes the file and loads it with the flags.
func (f *fixture) load(yaml string, args ...string) (Config, error) {
	f.t.Helper()
	certtest.Write(f.t, f.dir, "config.yaml", []byte(yaml))
	return load(f.t, append([]string{"--config", f.file}, args...)...)
}

func load(t *testing.T, args ...string) (Config, error) {
	t.Helper()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(fs)
}

func TestAFileIsReadAndTheRestIsDefault(t *testing.T) {
	f := newFixture(t)
	got, err := f.load(f.good + "pollInterval: 3s\n")
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Servers:           []Server{{Name: "cp-1", Address: "10.0.0.11:6445"}, {Name: "cp-2", Address: "10.0.0.12:6443", Direct: true}},
		EndpointSlice:     EndpointSlice{PeerPort: 6445, Names: map[string]string{}},
		PeerCAFile:        f.caFile,
		TLSCertFile:       f.cert,
		TLSPrivateKeyFile: f.priv,
		Socket:            f.dir + "/xds.sock", ListenAllowedNames: []string{"front-proxy-client"}, AdminAddress: "127.0.0.1:9985",
		PollInterval: 3 * time.Second, PollTimeout: 5 * time.Second, Hold: time.Hour,
		LogLevel: "info", LogFormat: "json",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if s := got.StaticServers(); !slices.Equal(s, []peers.Server{{Name: "cp-1", Address: "10.0.0.11:6445"}, {Name: "cp-2", Address: "10.0.0.12:6443", Direct: true}}) {
		t.Errorf("servers: %v", s)
	}
}

func TestAFlagIsStrongerThanTheEnvironmentThanTheFileThanTheDefault(t *testing.T) {
	f := newFixture(t)
	check := func(want time.Duration, yaml string, args ...string) {
		t.Helper()
		c, err := f.load(f.good+yaml, args...)
		if err != nil || c.Hold != want {
			t.Errorf("hold is %v (%v), want %v", c.Hold, err, want)
		}
	}
	check(time.Hour, "")
	check(2*time.Hour, "hold: 2h\n")
	t.Setenv("XDS_SERVER_HOLD", "3h")
	check(3*time.Hour, "hold: 2h\n")
	check(4*time.Hour, "hold: 2h\n", "--hold", "4h")
}

func TestEverythingCanBeSaidByFlagsAlone(t *testing.T) {
	f := newFixture(t)
	c, err := load(t, "--servers", "cp-1=10.0.0.11:6445,cp-2=[fd00::12]:6443/direct", "--node-name", "cp-1", "--local-address", "127.0.0.1:6443",
		"--peer-ca-file", f.caFile, "--tls-cert-file", f.cert, "--tls-private-key-file", f.priv, "--socket", f.dir+"/s",
		"--listen", ":18000", "--listen-client-ca-file", f.fpFile, "--listen-allowed-names", "a,b")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Server{{Name: "cp-1", Address: "10.0.0.11:6445"}, {Name: "cp-2", Address: "[fd00::12]:6443", Direct: true}}, c.Servers); d != "" {
		t.Error(d)
	}
	if !slices.Equal(c.ListenAllowedNames, []string{"a", "b"}) {
		t.Error(c.ListenAllowedNames)
	}
}

func TestEverythingCanBeSaidByTheEnvironmentAlone(t *testing.T) {
	f := newFixture(t)
	for _, e := range []string{"ENDPOINT_SLICE=true", "PEER_PORT=7000", "ENDPOINT_SLICE_NAMES=10.0.0.11=cp-1,fd00::12=cp-2",
		"PEER_CA_FILE=" + f.caFile, "TLS_CERT_FILE=" + f.cert, "TLS_PRIVATE_KEY_FILE=" + f.priv, "SOCKET=" + f.dir + "/s", "LOG_LEVEL=debug"} {
		k, v, _ := strings.Cut(e, "=")
		t.Setenv(EnvPrefix+k, v)
	}
	c, err := load(t)
	if err != nil {
		t.Fatal(err)
	}
	want := EndpointSlice{Enabled: true, PeerPort: 7000, Names: map[string]string{"10.0.0.11": "cp-1", "fd00::12": "cp-2"}}
	if d := cmp.Diff(want, c.EndpointSlice); d != "" {
		t.Error(d)
	}
}

func TestAddressesAsKeysOfTheFileKeepTheirDotsAndColons(t *testing.T) {
	f := newFixture(t)
	yaml := f.good[strings.Index(f.good, "peerCAFile"):] + "endpointSlice:\n  enabled: true\n  names: {\"10.0.0.11\": cp-1, \"FD00::12\": cp-2}\n"
	c, err := f.load(yaml)
	if err != nil {
		t.Fatal(err)
	}
	names := c.EndpointSlice.AddressNames()
	if len(names) != 2 {
		t.Error(names)
	}
}

// Each case is one thing that someone gets wrong, and the words that the one line of the error must hold.
func TestWhatIsWrongIsSaidInOneLineWithTheKey(t *testing.T) {
	f := newFixture(t)
	other := certtest.NewCA(t, "other")
	write := func(name string, data []byte) string { return certtest.Write(t, f.dir, name, data) }
	pair := func(name string, ca *certtest.CA, changes ...certtest.Change) string {
		cert, key := ca.Issue("xds-server", changes...)
		write(name+".key", key)
		return write(name+".crt", cert)
	}
	issued := func(path string) string {
		return "--tls-cert-file=" + path + " --tls-private-key-file=" + strings.TrimSuffix(path, "crt") + "key"
	}
	listen := "--listen=127.0.0.1:1 --listen-client-ca-file="
	garbage := write("garbage.crt", []byte("no PEM"))
	plain := write("file", nil)
	servers := func(list string) string { return strings.Replace(f.good, "servers:\n", "servers:\n"+list+"\n", 1) }
	without := func(key string) string {
		lines := strings.Split(f.good, "\n")
		return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, key) }), "\n")
	}
	none := f.good[strings.Index(f.good, "peerCAFile"):]
	slice := none + "endpointSlice:\n  enabled: true\n"

	for _, c := range []struct {
		name, yaml, args string
		want             []string
	}{
		{"unknown key", f.good + "pollIntervall: 2s\n", "", []string{f.file, "unknown key pollintervall"}},
		{"unknown key below another", slice + "  port: 1\n", "", []string{f.file, "unknown key endpointslice.port"}},
		{"unknown key of a server", servers(`- {name: a, adress: "10.0.0.1:1"}`), "", []string{f.file, "servers[0]", "adress"}},
		{"bad YAML", "a: [", "", []string{f.file, "yaml"}},
		{"key given twice", f.good + "socket: /x\n", "", []string{f.file, "socket", "already defined"}},
		{"a number where a duration belongs", f.good + "hold: 5\n", "", []string{"hold", "number and a unit"}},
		{"a word where a duration belongs", f.good + "hold: long\n", "", []string{"hold", "number and a unit"}},
		{"a list where a word belongs", f.good + "nodeName: [a]\n", "", []string{"nodeName"}},
		{"no servers", none, "", []string{"no kube-apiservers", "servers", "endpointSlice.enabled"}},
		{"servers and endpointSlice", f.good + "endpointSlice: {enabled: true}\n", "", []string{"servers and endpointSlice.enabled"}},
		{"server without a name", servers(`- {address: "10.0.0.1:1"}`), "", []string{"servers[0]", "10.0.0.1:1", "name is missing"}},
		{"server without an address", servers(`- {name: a}`), "", []string{"servers[0]", `"a"`, "address is missing"}},
		{"server with a bad name", servers(`- {name: A_b, address: "10.0.0.1:1"}`), "", []string{"servers[0].name", "A_b"}},
		{"duplicate name", servers(`- {name: cp-2, address: "10.0.0.1:1"}`), "", []string{"servers[0] and servers[2]", `"cp-2"`}},
		{"duplicate address", servers(`- {name: a, address: "[::ffff:10.0.0.11]:6445"}`), "", []string{"servers[0] (a)", "servers[1] (cp-1)", "10.0.0.11:6445"}},
		{"address without a port", servers(`- {name: a, address: "10.0.0.1"}`), "", []string{"servers[0].address", "host:port"}},
		{"address with port 0", servers(`- {name: a, address: "10.0.0.1:0"}`), "", []string{"servers[0].address", `"0" is no port`}},
		{"address with a large port", servers(`- {name: a, address: "10.0.0.1:65536"}`), "", []string{"servers[0].address", "65536"}},
		{"address without a host", servers(`- {name: a, address: ":1"}`), "", []string{"servers[0].address", "no host"}},
		{"unspecified address", servers(`- {name: a, address: "0.0.0.0:1"}`), "", []string{"servers[0].address", "one machine"}},
		{"multicast address", servers(`- {name: a, address: "[ff02::1]:1"}`), "", []string{"servers[0].address", "one machine"}},
		{"address that is a URL", servers(`- {name: a, address: "https://a:1"}`), "", []string{"servers[0].address"}},
		{"node that is not listed", f.good, "--node-name=cp-9", []string{"nodeName", "cp-9", "servers"}},
		{"local address without a node", f.good, "--local-address=127.0.0.1:6443", []string{"localAddress", "nodeName"}},
		{"bad local address", f.good, "--node-name=cp-1 --local-address=6443", []string{"localAddress", "6443"}},
		{"names without endpointSlice", f.good + "endpointSlice: {names: {\"10.0.0.1\": a}}\n", "", []string{"endpointSlice.names", "endpointSlice.enabled"}},
		{"bad peer port", slice, "--peer-port=0", []string{"endpointSlice.peerPort", "0"}},
		{"name of no address", slice + "  names: {host: a}\n", "", []string{"endpointSlice.names", "host"}},
		{"two addresses of one name", slice + "  names: {\"10.0.0.1\": a, \"10.0.0.2\": a}\n", "", []string{"10.0.0.1", "10.0.0.2", `"a"`}},
		{"one address twice", slice + "  names: {\"fd00::1\": a, \"fd00:0::1\": b}\n", "", []string{"fd00::1", "fd00:0::1", "same address"}},
		{"name that is another's address", slice + "  names: {\"10.0.0.1\": \"10.0.0.2\"}\n", "", []string{"10.0.0.1", "another server's address"}},
		{"negative hold", f.good, "--hold=-1s", []string{"hold", "-1s"}},
		{"negative interval", f.good, "--poll-interval=-1s", []string{"pollInterval", "-1s"}},
		{"no timeout", f.good, "--poll-timeout=0s", []string{"pollTimeout", "0s"}},
		{"unknown log level", f.good, "--log-level=loud", []string{"logLevel", "loud", "debug"}},
		{"unknown log format", f.good, "--log-format=xml", []string{"logFormat", "xml"}},
		{"bad admin address", f.good, "--admin-address=9985", []string{"adminAddress", "9985"}},
		{"bad listen address", f.good, "--listen=host", []string{"listen", "host"}},
		{"listen without a CA", f.good, "--listen=:1", []string{"listen", "listenClientCAFile"}},
		{"no allowed name", f.good + "listenAllowedNames: []\n", listen + f.fpFile, []string{"listenAllowedNames"}},
		{"no way in", f.good + "", "--socket=", []string{"socket and listen"}},
		{"relative socket", f.good, "--socket=xds.sock", []string{"socket", "absolute"}},
		{"socket in no directory", f.good, "--socket=" + f.dir + "/none/xds.sock", []string{"socket", f.dir + "/none", "does not exist"}},
		{"socket below a file", f.good, "--socket=" + plain + "/xds.sock", []string{"socket", plain}},
		{"socket that is a file", f.good, "--socket=" + plain, []string{"socket", plain, "no socket"}},
		{"socket path too long", f.good, "--socket=/" + strings.Repeat("x", 107), []string{"socket", "103"}},
		{"no CA", without("peerCAFile"), "", []string{"peerCAFile", "--peer-ca-file"}},
		{"no certificate", without("tlsCertFile"), "", []string{"tlsCertFile", "--tls-cert-file"}},
		{"no key", without("tlsPrivateKeyFile"), "", []string{"tlsPrivateKeyFile", "--tls-private-key-file"}},
		{"missing CA", f.good, "--peer-ca-file=/none", []string{"peerCAFile", "/none", "no such file"}},
		{"unreadable CA", f.good, "--peer-ca-file=" + f.dir, []string{"peerCAFile", f.dir}},
		{"CA that is no PEM", f.good, "--peer-ca-file=" + garbage, []string{"peerCAFile", garbage, "no PEM"}},
		{"CA that is a key", f.good, "--peer-ca-file=" + f.priv, []string{"peerCAFile", f.priv, "no PEM certificate"}},
		{"expired CA", f.good, "--peer-ca-file=" + write("old.crt", certtest.NewCA(t, "old", certtest.Expired).PEM()), []string{"peerCAFile", "old.crt", "expired"}},
		{"missing certificate", f.good, "--tls-cert-file=/none", []string{"tlsCertFile", "/none"}},
		{"missing key", f.good, "--tls-private-key-file=/none", []string{"tlsPrivateKeyFile", "/none"}},
		{"key that is no PEM", f.good, "--tls-private-key-file=" + garbage, []string{"tlsPrivateKeyFile", garbage, "PEM"}},
		{"key of another certificate", f.good, "--tls-cert-file=" + pair("other", other), []string{"other.crt", f.priv, "does not fit"}},
		{"expired certificate", f.good, issued(pair("expired", f.ca, certtest.Expired)), []string{"tlsCertFile", "expired.crt", "expired on"}},
		{"certificate of the future", f.good, issued(pair("future", f.ca, certtest.Future)), []string{"tlsCertFile", "future.crt", "not valid before"}},
		{"certificate of an administrator", f.good, issued(pair("admin", f.ca, certtest.Organization("system:masters"))), []string{"tlsCertFile", "system:masters"}},
		{"certificate for servers only", f.good, issued(pair("server", f.ca, certtest.Usages(x509.ExtKeyUsageServerAuth))), []string{"tlsCertFile", "clientAuth"}},
		{"certificate for clients only, with listen", f.good, listen + f.fpFile + " " + issued(pair("client", f.ca, certtest.Usages(x509.ExtKeyUsageClientAuth))), []string{"tlsCertFile", "serverAuth"}},
		{"certificate without the name that Envoys verify", f.good, listen + f.fpFile + " " + issued(pair("nameless", f.ca)), []string{"tlsCertFile", ServingName}},
		{"certificate of a group", f.good, issued(pair("member", f.ca, certtest.Organization("ops"))), []string{"tlsCertFile", "ops"}},
		{"node that the EndpointSlice's names lack", slice + "  names: {\"10.0.0.1\": cp-1}\nnodeName: cp-2\n", "", []string{"nodeName", "cp-2", "endpointSlice.names"}},
		{"server by a host name", servers(`- {name: a, address: "cp-1.example.com:1"}`), "", []string{"servers[0].address", "cp-1.example.com:1", "IP:port"}},
		{"server called local", servers(`- {name: local, address: "10.0.0.1:1"}`), "", []string{"servers[0].name", "local"}},
		{"hold shorter than two reads", f.good, "--hold=1s", []string{"hold", "1s"}},
		{"certificate of the front proxy", f.good, listen + f.fpFile + " " + issued(pair("fp", f.fp)), []string{"tlsCertFile", "fp.crt", "front-proxy CA", "any user"}},
		{"front-proxy CA equal to client CA", f.good, listen + f.caFile, []string{"front-proxy CA (" + f.caFile, "client CA (" + f.caFile, "are the same CA"}},
		{"front-proxy CA with the client CA's key", f.good, listen + write("again.crt", f.ca.Reissue("front-proxy-ca").PEM()), []string{"again.crt", f.caFile, "are the same CA"}},
		{"client CA in the front-proxy CA's bundle", f.good, listen + write("bundle.crt", slices.Concat(f.fp.PEM(), f.ca.PEM())), []string{"bundle.crt", f.caFile, "are the same CA"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := f.load(c.yaml, strings.Fields(c.args)...)
			if err == nil {
				t.Fatal("it was accepted")
			}
			text := err.Error()
			if strings.Contains(text, "\n") {
				t.Errorf("more than one line: %s", text)
			}
			for _, w := range c.want {
				if !strings.Contains(text, w) {
					t.Errorf("%q is not in: %s", w, text)
				}
			}
		})
	}
}

func TestAConfigurationFileThatIsNamedMustExist(t *testing.T) {
	for name, file := range map[string]string{"missing": "/none/config.yaml", "directory": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("XDS_SERVER_CONFIG", file)
			if _, err := load(t); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestASocketOfAnEarlierRunIsNoFault(t *testing.T) {
	f := newFixture(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.dir + "/xds.sock"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if _, err := f.load(f.good); err != nil {
		t.Error(err)
	}
}

func TestACAThatIsRenewedKeepsItsExpiredCertificateInTheBundle(t *testing.T) {
	f := newFixture(t)
	bundle := slices.Concat(certtest.NewCA(t, "old", certtest.Expired).PEM(), f.ca.PEM())
	if _, err := f.load(f.good, "--peer-ca-file", certtest.Write(t, f.dir, "bundle.crt", bundle)); err != nil {
		t.Error(err)
	}
}

// Every field of Config has exactly one line in the table of settings, and the reference shows it.
func TestTheTableOfSettingsIsComplete(t *testing.T) {
	var keys []string
	var walk func(prefix string, typ reflect.Type)
	walk = func(prefix string, typ reflect.Type) {
		for i := range typ.NumField() {
			field := typ.Field(i)
			key := prefix + field.Tag.Get("mapstructure")
			if field.Type.Kind() == reflect.Struct {
				walk(key+".", field.Type)
				continue
			}
			keys = append(keys, key)
		}
	}
	walk("", reflect.TypeFor[Config]())
	var listed []string
	for _, s := range settings {
		listed = append(listed, s.key)
		if s.usage == "" {
			t.Errorf("%s is not explained", s.key)
		}
	}
	slices.Sort(keys)
	slices.Sort(listed)
	if d := cmp.Diff(keys, listed); d != "" {
		t.Error(d)
	}
	for _, want := range []string{"| `hold` | `--hold` | `XDS_SERVER_HOLD` | `1h0m0s` |", "`XDS_SERVER_PEER_CA_FILE`"} {
		if !strings.Contains(Reference(), want) {
			t.Errorf("the reference lacks %s", want)
		}
	}
}

func TestMain(m *testing.M) {
	// The tester's own environment is not part of any test.
	for _, e := range os.Environ() {
		if k, _, _ := strings.Cut(e, "="); strings.HasPrefix(k, EnvPrefix) {
			os.Unsetenv(k)
		}
	}
	os.Exit(m.Run())
}
