package envoy

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func options(edit func(*Options)) Options {
	o := Defaults()
	o.NodeName, o.FrontAddress = "cp-1", "10.0.0.11"
	if edit != nil {
		edit(&o)
	}
	return o.Complete()
}

// withoutScripts leaves a line where a script stands, so that a golden file shows configuration only.
func withoutScripts(b []byte) string {
	var out strings.Builder
	skip := -1
	for line := range strings.Lines(string(b)) {
		depth := len(line) - len(strings.TrimLeft(line, " "))
		if skip >= 0 && (strings.TrimSpace(line) == "" || depth > skip) {
			continue
		}
		skip = -1
		if strings.HasSuffix(line, "inline_string: |\n") {
			skip = depth
			line = strings.Replace(line, "|\n", "(script)\n", 1)
		}
		out.WriteString(line)
	}
	return out.String()
}

func TestBootstrapsAsGoldenFiles(t *testing.T) {
	for name, edit := range map[string]func(*Options){
		"kubeadm": nil,
		"everything": func(o *Options) {
			o.ExtraAddresses = []string{"10.0.0.100", "[fd00::100]:443"}
			o.ProxyProtocol = true
			o.XDSPeers = []string{"10.0.0.12:9443", "10.0.0.13:9443"}
			o.AdminAddress = "127.0.0.1:9901"
			o.AllowedNames = []string{"front-proxy-client", "system:auth-proxy"}
			o.SecretsDir = "/var/lib/odd dir: {with} \"signs\""
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(edit)
			b, err := Bootstrap(o)
			if err != nil {
				t.Fatal(err)
			}
			var parsed map[string]any
			if err := yaml.UnmarshalStrict(b, &parsed); err != nil {
				t.Fatalf("not YAML: %v", err)
			}
			secrets, err := Secrets(o)
			if err != nil {
				t.Fatal(err)
			}
			got := bytes.NewBufferString(withoutScripts(b))
			for _, s := range []string{"serving", "front-proxy", "client-ca", "front-proxy-ca", "server-ca"} {
				fmt.Fprintf(got, "--- # %s\n%s", SecretFile(s), secrets[SecretFile(s)])
			}
			golden := filepath.Join("testdata", name+".golden.yaml")
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got; -update rewrites it):\n%s", golden, diff)
			}
		})
	}
}

func TestWhatCanNotWorkIsRefusedWithTheFlagThatSetsIt(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*Options)
		want string
	}{
		"no node name":                   {func(o *Options) { o.NodeName = "" }, "--node-name"},
		"a node name that is YAML":       {func(o *Options) { o.NodeName = "a\nadmin: {}" }, "--node-name"},
		"no address":                     {func(o *Options) { o.FrontAddress = "" }, "--address"},
		"a host name":                    {func(o *Options) { o.FrontAddress = "cp-1.example" }, "--address"},
		"port 0":                         {func(o *Options) { o.FrontAddress = "10.0.0.11:0" }, "--address"},
		"the apiserver's own address":    {func(o *Options) { o.FrontAddress = o.LocalAddress }, "--address"},
		"peer listener on the front":     {func(o *Options) { o.PeerAddress = "10.0.0.11:6443" }, "--peer-address"},
		"a wildcard front":               {func(o *Options) { o.FrontAddress = "0.0.0.0" }, "wildcard"},
		"a virtual IP that is the front": {func(o *Options) { o.ExtraAddresses = []string{"10.0.0.11"} }, "--extra-address"},
		"admin for everybody":            {func(o *Options) { o.AdminAddress = "0.0.0.0:9901" }, "--admin-address"},
		"a relative admin socket":        {func(o *Options) { o.AdminAddress = "unix:admin.sock" }, "--admin-address"},
		"a relative file":                {func(o *Options) { o.ClientCAFile = "ca.crt" }, "--client-ca-file"},
		"any front-proxy certificate":    {func(o *Options) { o.AllowedNames = nil }, "--requestheader-allowed-names"},
		"any xds-server":                 {func(o *Options) { o.XDSServerNames = nil }, "--xds-server-names"},
		"a bad xds-peer":                 {func(o *Options) { o.XDSPeers = []string{"other"} }, "--xds-peer"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Bootstrap(options(tt.edit))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want one about %s", err, tt.want)
			}
		})
	}
}
