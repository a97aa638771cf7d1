package discovery

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// The legacy documents say three things that the aggregated ones do not: the servers' addresses, what the shared
// APIService objects list, and the hashes that tell in which version each resource is stored.

const (
	maxLegacyBytes = 16 << 20
	maxAddresses   = 100
	maxAddress     = 300
	maxStorageHash = 64
)

// parseAddresses reads the legacy /api.
func parseAddresses(r io.Reader) ([]metav1.ServerAddressByClientCIDR, entries, error) {
	p := newParser(r)
	var out []metav1.ServerAddressByClientCIDR
	err := p.legacy("APIVersions", "serverAddressByClientCIDRs", func() error {
		return p.array(func() error {
			var a metav1.ServerAddressByClientCIDR
			if err := p.small(&a); err != nil {
				return err
			}
			if len(out) >= maxAddresses {
				return fmt.Errorf("%w: more than %d addresses", errTooLarge, maxAddresses)
			}
			if !validCIDR(a.ClientCIDR) || !validAddress(a.ServerAddress) {
				p.drop(reasonInvalid, "address", a.ClientCIDR+" "+a.ServerAddress)
				return nil
			}
			out = append(out, a)
			return nil
		})
	})
	if err != nil {
		return nil, entries{}, err
	}
	return out, p.left(), nil
}

// parseGroups reads the legacy /apis: the groups and versions that it lists, sorted.
func parseGroups(r io.Reader) ([]schema.GroupVersion, entries, error) {
	p := newParser(r)
	var out []schema.GroupVersion
	seen := map[schema.GroupVersion]bool{}
	err := p.legacy("APIGroupList", "groups", func() error {
		return p.array(func() error {
			if p.groups++; p.groups > maxGroups {
				return fmt.Errorf("%w: more than %d groups", errTooLarge, maxGroups)
			}
			name, versions, err := p.legacyGroup()
			for _, v := range versions {
				gv := schema.GroupVersion{Group: name, Version: v}
				switch {
				case name == "" || !validGroup(name) || !validVersion(v):
					p.drop(reasonInvalid, "listed group and version", name+"/"+v)
				case seen[gv]:
					p.drop(reasonDuplicate, "listed group and version", name+"/"+v)
				default:
					seen[gv] = true
					out = append(out, gv)
				}
			}
			return err
		})
	})
	if err != nil {
		return nil, entries{}, err
	}
	slices.SortFunc(out, func(a, b schema.GroupVersion) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version))
	})
	return out, p.left(), nil
}

func (p *parser) legacyGroup() (name string, versions []string, err error) {
	err = p.object(func(field string) error {
		switch field {
		case "name":
			return p.decode(&name)
		case "versions":
			return p.array(func() error {
				if p.versions++; p.versions > maxVersions {
					return fmt.Errorf("%w: more than %d versions", errTooLarge, maxVersions)
				}
				var v metav1.GroupVersionForDiscovery
				err := p.small(&v)
				versions = append(versions, v.Version)
				return err
			})
		default:
			return p.skip()
		}
	})
	return name, versions, err
}

// parseStorage reads a legacy /api/v1 or /apis/<g>/<v>: its storage version hashes by resource. It may be empty.
func parseStorage(r io.Reader, gv schema.GroupVersion) (map[string]string, entries, error) {
	p := newParser(r)
	out := map[string]string{}
	err := p.legacy("APIResourceList", "resources", func() error {
		return p.array(func() error {
			if p.resources++; p.resources > maxResources {
				return fmt.Errorf("%w: more than %d resources", errTooLarge, maxResources)
			}
			var resource struct {
				Name               string `json:"name"`
				StorageVersionHash string `json:"storageVersionHash"`
			}
			if err := p.small(&resource); err != nil {
				return err
			}
			name, hash := resource.Name, resource.StorageVersionHash
			switch {
			case hash == "":
			case !validSubresource(name) || !validStorageHash(hash):
				p.drop(reasonInvalid, "storage version of "+gv.String(), name+" "+hash)
			case out[name] != "":
				p.drop(reasonDuplicate, "storage version of "+gv.String(), name)
			default:
				out[name] = hash
			}
			return nil
		})
	})
	if err != nil {
		return nil, entries{}, err
	}
	return out, p.left(), nil
}

// legacy reads a document of a kind, whose one list that matters is read by items.
func (p *parser) legacy(want, list string, items func() error) error {
	var kind string
	found := false
	err := p.whole(func() error {
		return p.object(func(field string) error {
			switch field {
			case "kind":
				return p.decode(&kind)
			case list:
				found = true
				return items()
			default:
				return p.skip()
			}
		})
	})
	switch {
	case err != nil:
		return err
	case kind != want:
		return fmt.Errorf("it is no %s but %.40q", want, kind)
	case !found:
		return errors.New("it has no " + list)
	}
	return nil
}

// small decodes a value in Kubernetes' way, where the case of names matters.
func (p *parser) small(into any) error {
	var raw json.RawMessage
	if err := p.decode(&raw); err != nil {
		return err
	}
	if len(raw) > maxEntryBytes {
		return fmt.Errorf("%w: an entry of more than %d bytes", errTooLarge, maxEntryBytes)
	}
	if err := utiljson.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("at byte %d: %w", p.dec.InputOffset(), err)
	}
	return nil
}

// validAddress is a host and perhaps a port, without anything that does not stand in one.
func validAddress(address string) bool {
	for _, c := range []byte(address) {
		if !alphanumeric(c) && c != '.' && c != '-' && c != ':' && c != '[' && c != ']' && c != '%' {
			return false
		}
	}
	return len(address) > 0 && len(address) <= maxAddress
}

// validStorageHash is base64.
func validStorageHash(hash string) bool {
	for _, c := range []byte(hash) {
		if !alphanumeric(c) && c != '+' && c != '/' && c != '=' && c != '-' && c != '_' {
			return false
		}
	}
	return len(hash) > 0 && len(hash) <= maxStorageHash
}

func validCIDR(s string) bool {
	_, err := netip.ParsePrefix(s)
	return err == nil
}
