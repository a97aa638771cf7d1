package discovery

import (
	"cmp"
	"slices"
)

// mergeOrders makes one list of the names in all lists. What stands before another name in some list stands before it
// here too; where no list says which of two is first, it is the smaller name. Where lists contradict each other, only
// names that stand before themselves that way may lose their order.
//
// apimachinery's MergePreservingRelativeOrder gives the same where there is no contradiction; where there is one, it
// either takes the first list or sorts all names, whether they have to do with it or not.
func mergeOrders(lists [][]string) []string {
	names := slices.Concat(lists...)
	slices.Sort(names)
	names = slices.Compact(names)

	o := newOrdering(names, lists)
	merged := make([]string, 0, len(names))
	for range names {
		next := o.next()
		o.take(next)
		merged = append(merged, names[next])
	}
	return merged
}

// ordering is a merge of lists under way. It knows names by their place in the sorted list of all names, so that
// smaller numbers are smaller names.
type ordering struct {
	lists []orderedList
	taken []bool
	// behind is in how many lists a name has others before it that were not taken yet.
	behind []int
	// A contradiction that was entered is finished before anything else, since what follows one of its names follows
	// all of them. Within it there may be a smaller one, and so on: depth is the innermost that a name is in, and left
	// is how many names are to be taken in each. 0 is all names.
	depth, left []int
	// seen is in which search a name was found last.
	seen     []int
	searches int
}

type orderedList struct {
	names []int
	// head is where the first name stands that was not taken yet.
	head int
	// at is where each name stands; -1 for names that are not in the list.
	at []int
}

func newOrdering(names []string, lists [][]string) *ordering {
	number := make(map[string]int, len(names))
	for i, name := range names {
		number[name] = i
	}
	o := &ordering{
		taken:  make([]bool, len(names)),
		behind: make([]int, len(names)),
		depth:  make([]int, len(names)),
		left:   []int{len(names)},
		seen:   make([]int, len(names)),
	}
	for _, list := range lists {
		l := orderedList{at: slices.Repeat([]int{-1}, len(names))}
		for _, name := range list {
			n := number[name]
			// Of a name that is given twice, the first counts.
			if l.at[n] >= 0 {
				continue
			}
			l.at[n] = len(l.names)
			if len(l.names) > 0 {
				o.behind[n]++
			}
			l.names = append(l.names, n)
		}
		o.lists = append(o.lists, l)
	}
	return o
}

// next is the smallest name that has none before it, or else a way into a contradiction.
func (o *ordering) next() int {
	best := -1
	for h := range o.heads {
		if o.behind[h] == 0 && (best < 0 || h < best) {
			best = h
		}
	}
	if best >= 0 {
		return best
	}
	best, others := o.leastBound()
	o.left = append(o.left, 0)
	for _, name := range others {
		o.left[o.depth[name]]--
		o.depth[name] = len(o.left) - 1
		o.left[o.depth[name]]++
	}
	return best
}

// heads are the first names of the lists, as far as they are in the contradiction that was entered last. Whatever has
// none before it, and of each contradiction that has none before it at least one name, is among them.
func (o *ordering) heads(yield func(name int) bool) {
	for _, l := range o.lists {
		if l.head < len(l.names) && o.depth[l.names[l.head]] == len(o.left)-1 && !yield(l.names[l.head]) {
			return
		}
	}
}

// leastBound is the name to go on with where lists contradict each other, and the others of the contradiction. It has
// the fewest names before it through all lists together, so that none of them is outside the contradiction; then the
// fewest directly, since their order is what is lost; then it is the smallest.
func (o *ordering) leastBound() (name int, others []int) {
	name = -1
	for h := range o.heads {
		if h == name {
			continue
		}
		before := o.before(h, true)
		order := -1
		if name >= 0 {
			order = cmp.Compare(len(before), len(others))
		}
		if order == 0 {
			order = cmp.Or(cmp.Compare(len(o.before(h, false)), len(o.before(name, false))), cmp.Compare(h, name))
		}
		if order < 0 {
			name, others = h, before
		}
	}
	return name, others
}

// before are the other names that are not taken and stand before a name in some list, or, through, before one of
// those and so on. The name is in the contradiction that was entered last, and then so are they.
func (o *ordering) before(name int, through bool) []int {
	o.searches++
	o.seen[name] = o.searches
	// What stands before these places was seen already.
	done := make([]int, len(o.lists))
	found := make([]int, 1, o.left[len(o.left)-1])
	found[0] = name
	for i := 0; i < len(found) && (through || i == 0); i++ {
		for j := range o.lists {
			l := &o.lists[j]
			at := l.at[found[i]]
			for p := max(done[j], l.head); p < at; p++ {
				if b := l.names[p]; !o.taken[b] && o.seen[b] != o.searches {
					o.seen[b] = o.searches
					found = append(found, b)
				}
			}
			done[j] = max(done[j], at)
		}
	}
	return found[1:]
}

func (o *ordering) take(name int) {
	o.taken[name] = true
	o.left[o.depth[name]]--
	for len(o.left) > 1 && o.left[len(o.left)-1] == 0 {
		o.left = o.left[:len(o.left)-1]
	}
	for i := range o.lists {
		l := &o.lists[i]
		was := l.head
		for l.head < len(l.names) && o.taken[l.names[l.head]] {
			l.head++
		}
		if l.head > was && l.head < len(l.names) {
			o.behind[l.names[l.head]]--
		}
	}
}
