package discovery

import (
	"slices"
	"strings"
	"testing"

	utilsort "k8s.io/apimachinery/pkg/util/sort"
	"pgregory.net/rapid"
)

// lists reads "a b c | b d".
func lists(s string) [][]string {
	var out [][]string
	for l := range strings.SplitSeq(s, "|") {
		out = append(out, strings.Fields(l))
	}
	return out
}

func TestOrdersOfServersBecomeOne(t *testing.T) {
	for _, c := range []struct{ what, servers, want string }{
		{"one server's order stays", "z b a", "z b a"},
		{"equal orders stay", "z b a | z b a", "z b a"},
		{"what one server lacks stays where the other has it", "apps events batch | apps batch", "apps events batch"},
		{"both may have something of their own", "apps new batch | apps batch zoo", "apps new batch zoo"},
		{"of what no server compares the smaller name is first", "apps zebra | apps ant", "apps ant zebra"},
		{"a priority beats the name", "z a | z b", "z a b"},
		{"no server knows all", "x y | y z | z a", "x y z a"},
		{"nothing", "", ""},
		{"a server without groups", "b a |", "b a"},
		{"a name given twice counts once", "b a b", "b a"},

		{"two that contradict each other are in the order of their names", "b a | a b", "a b"},
		{"what is before and after a contradiction stays there", "z1 q p a1 | z1 p q a1", "z1 p q a1"},
		{"one server that has a group elsewhere moves that group only", "x m1 m2 m3 z | z x", "x m1 m2 m3 z"},
		{"the same, whatever the names", "z m1 m2 m3 a | a z", "z m1 m2 m3 a"},
		{"two contradictions do not touch each other", "b a z y | a b y z", "a b y z"},
		{"a contradiction of three", "b c | c a | a b", "a b c"},
		{"what only follows a contradiction waits for it", "q p | p q | p h | h t | q h", "p q h t"},
		{"what follows one name of a contradiction follows all", "a b | a e | e a", "a e b"},
		{"how many say so is no reason: it would change with every server that comes or goes", "b a | b a | a b", "a b"},
	} {
		if got := strings.Join(mergeOrders(lists(c.servers)), " "); got != c.want {
			t.Errorf("%s: of %q came %q, not %q", c.what, c.servers, got, c.want)
		}
	}
}

func drawLists(t *rapid.T, name *rapid.Generator[string]) [][]string {
	return rapid.SliceOfN(rapid.SliceOfNDistinct(name, 0, 7, rapid.ID[string]), 0, 4).Draw(t, "lists")
}

func TestNoOrderIsLostThatIsNotContradicted(t *testing.T) {
	name := rapid.StringMatching(`[a-i]`)
	rapid.Check(t, func(t *rapid.T) {
		in := drawLists(t, name)
		got := mergeOrders(in)

		// before[x][y]: x stands before y, through all lists together.
		before := map[string]map[string]bool{}
		for _, x := range got {
			before[x] = map[string]bool{}
		}
		for _, l := range in {
			for i, x := range l {
				for _, y := range l[i+1:] {
					before[x][y] = true
				}
			}
		}
		for _, via := range got {
			for _, x := range got {
				for _, y := range got {
					if before[x][via] && before[via][y] {
						before[x][y] = true
					}
				}
			}
		}
		for i, x := range got {
			for _, y := range got[i+1:] {
				if before[y][x] && !before[x][y] {
					t.Errorf("%v: %s is before %s in all servers, but not in %v", in, y, x, got)
				}
			}
		}
		all := slices.Concat(in...)
		slices.Sort(all)
		if all = slices.Compact(all); !slices.Equal(all, slices.Sorted(slices.Values(got))) {
			t.Errorf("%v became %v", in, got)
		}
	})
}

func TestTheOrderOfServersAndTheirNumberMeansNothing(t *testing.T) {
	name := rapid.StringMatching(`[a-i]`)
	rapid.Check(t, func(t *rapid.T) {
		in := drawLists(t, name)
		got := mergeOrders(in)
		others := rapid.Permutation(slices.Concat(in, in)).Draw(t, "others")
		if other := mergeOrders(others); !slices.Equal(got, other) {
			t.Errorf("%v became %v, but %v became %v", in, got, others, other)
		}
		if again := mergeOrders([][]string{got}); !slices.Equal(got, again) {
			t.Errorf("%v became %v", got, again)
		}
	})
}

// Where nothing is contradicted, apimachinery's own function has one answer only.
func TestOrdersAreThoseOfApimachinery(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.Permutation(strings.Split("abcdefghi", "")).Draw(t, "all")
		in := make([][]string, rapid.IntRange(1, 4).Draw(t, "servers"))
		for i := range in {
			for _, name := range all {
				if rapid.Bool().Draw(t, "has") {
					in[i] = append(in[i], name)
				}
			}
		}
		if got, want := mergeOrders(in), utilsort.MergePreservingRelativeOrder(in); !slices.Equal(got, want) {
			t.Errorf("%v became %v, not %v", in, got, want)
		}
	})
}
