package peers

import "net/netip"

// Usable says whether an address can be one server's. Loopback can: it is where a lab's servers are, and whoever can
// write the object that addresses come from gains nothing by it, since only a holder of a certificate of the cluster's
// CA is believed there.
func Usable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsMulticast() &&
		a.Unmap() != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
