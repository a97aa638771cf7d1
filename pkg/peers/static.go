package peers

import (
	"cmp"
	"context"
	"slices"
)

// MaxServers bounds a list of servers, wherever it comes from. No control plane is near it; a list beyond it is a fault
// that must not turn into load on the others.
const MaxServers = 256

// Static is a list that never changes.
type Static []Server

// Run implements Source.
func (s Static) Run(ctx context.Context, emit func([]Server)) error {
	emit(sorted(s))
	<-ctx.Done()
	return nil
}

func sorted(list []Server) []Server {
	out := slices.Clone(list)
	slices.SortFunc(out, func(a, b Server) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
