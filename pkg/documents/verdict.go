package documents

// Verdict says how far a discovery document is known here, and so what is to become of the local server's answer.
type Verdict int

const (
	// Absent: no document of this path is known; the local answer stands.
	Absent Verdict = iota
	// Same: every server has the document, with equal bytes; the local 200 stands, but a 404 is wrong.
	Same
	// Merged: the document is rendered here, in place of the local 200 or 404.
	Merged
	// Unread: the document exists but can't be rendered now: a local 200 stands, anything else that says it is not there
	// is a 503.
	Unread
)

func (v Verdict) String() string {
	switch v {
	case Absent:
		return "absent"
	case Same:
		return "same"
	case Merged:
		return "merged"
	default:
		return "unread"
	}
}
