package routing

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// spellings are ways to write a header field that HTTP/1.1 forbids, or that recipients read in different ways.
var spellings = []struct {
	name  string
	spell func(f field) string
}{
	{"a blank before the colon", func(f field) string { return f.name + " : " + f.value }},
	{"a tab before the colon", func(f field) string { return f.name + "\t: " + f.value }},
	{"a blank before the name", func(f field) string { return " " + f.name + ": " + f.value }},
	{"a vertical tab before the name", func(f field) string { return "\v" + f.name + ": " + f.value }},
	{"folded behind another header", func(f field) string { return "X-Other: a\r\n " + f.name + ": " + f.value }},
	{"folded behind another header with a tab", func(f field) string { return "X-Other: a\r\n\t" + f.name + ": " + f.value }},
	{"a folded value", func(f field) string { return f.name + ":\r\n " + f.value }},
	{"a folded name", func(f field) string { return strings.Replace(f.name, "-", "-\r\n ", 1) + ": " + f.value }},
	{"a bare line feed before it", func(f field) string { return "X-Other: a\n" + f.name + ": " + f.value }},
	{"a bare carriage return before it", func(f field) string { return "X-Other: a\r" + f.name + ": " + f.value }},
	{"two carriage returns before it", func(f field) string { return "X-Other: a\r\r\n" + f.name + ": " + f.value }},
	{"NUL before it", func(f field) string { return "X-Other: a\x00" + f.name + ": " + f.value }},
	{"NUL in the name", func(f field) string { return f.name + "\x00: " + f.value }},
	{"NUL before the value", func(f field) string { return f.name + ": \x00" + f.value }},
	{"a no-break space behind the name", func(f field) string { return f.name + "\xa0: " + f.value }},
	{"two colons", func(f field) string { return f.name + ":: " + f.value }},
	{"a colon first", func(f field) string { return ": " + f.name + ": " + f.value }},
	{"a colon as the first letter", func(f field) string { return ":" + f.name + ": " + f.value }},
	{"no colon", func(f field) string { return f.name + " " + f.value }},
	{"no blank", func(f field) string { return f.name + ":" + f.value }},
	{"many blanks", func(f field) string { return f.name + ":  \t  " + f.value + "  \t " }},
	{"quotes", func(f field) string { return `"` + f.name + `": ` + f.value }},
	{"a full-width letter", func(f field) string { return strings.Replace(f.name, "X", "Ｘ", 1) + ": " + f.value }},
	{"soft hyphens", func(f field) string { return strings.ReplaceAll(f.name, "-", "\u00ad") + ": " + f.value }},
}

// malformedHTTP1 sends what a front refuses, or reads as no identity. Every answer on the connection is given.
func (x exchange) malformedHTTP1() map[string][]verdict {
	requests := map[string]string{}
	everything := lines(forged)
	for _, spelling := range spellings {
		var b strings.Builder
		for _, f := range forged {
			b.WriteString(spelling.spell(f) + "\r\n")
		}
		requests[spelling.name] = x.text(whoamiPath, b.String())
	}
	nominated := "Connection: X-Remote-User, X-Remote-Group, X-Remote-Uid, X-Remote-Extra-Scopes, X-Id-State, X-Gvr\r\n"
	requests["nominated in Connection"] = x.text(whoamiPath, nominated+everything)
	requests["nominated in Connection alone"] = x.text(whoamiPath, nominated)
	requests["Authorization nominated in Connection"] = x.text(whoamiPath, "Connection: Authorization, Host, Content-Length\r\n"+everything)
	requests["behind a thousand headers"] = x.text(whoamiPath, strings.Repeat("X-Other: a\r\n", 1000)+everything)
	requests["behind a header of 900 kB"] = x.text(whoamiPath, "X-Other: "+strings.Repeat("a", 900_000)+"\r\n"+everything)
	requests["in HTTP/1.0"] = strings.Replace(x.text(whoamiPath, everything), "HTTP/1.1", "HTTP/1.0", 1)
	requests["with an absolute URI"] = strings.Replace(x.text(whoamiPath, everything), " /", " https://kubernetes.default.svc/", 1)
	requests["in the request line"] = strings.Replace(x.text(whoamiPath, ""), " HTTP/1.1", " HTTP/1.1\n"+everything, 1)
	requests["in the path"] = strings.Replace(x.text(whoamiPath, ""), " HTTP/1.1", "?\tHTTP/1.1\r\n"+everything, 1)
	requests["with Expect"] = x.text(whoamiPath, "Expect: 100-continue\r\n"+everything)

	chunk := fmt.Sprintf("%x\r\n%s\r\n", len(whoamiBody), whoamiBody)
	chunked := x.head("POST", whoamiPath, "Transfer-Encoding: chunked\r\nTrailer: X-Remote-User, X-Remote-Group\r\n") + "\r\n"
	requests["in trailers"] = chunked + chunk + "0\r\n" + everything + "\r\n"
	requests["in a chunk's extension"] = chunked + fmt.Sprintf("%x;a=\n%s\r\n%s\r\n", len(whoamiBody), everything, whoamiBody) + "0\r\n\r\n"
	requests["in the last chunk's extension"] = chunked + chunk + "0;a\n" + everything + "\r\n"

	// A second request where a recipient that reads the length in another way would see one.
	inner := x.text(whoamiPath, everything)
	length := func(n int) string { return "Content-Length: " + strconv.Itoa(n) + "\r\n" }
	zero := "0\r\n\r\n" + inner
	for name, encoding := range map[string]string{
		"": "Transfer-Encoding: chunked", " with a blank before the colon": "Transfer-Encoding : chunked", " with a tab": "Transfer-Encoding:\tchunked",
		" twice": "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", " and identity": "Transfer-Encoding: identity, chunked",
		" and another": "Transfer-Encoding: chunked, gzip", " in quotes": `Transfer-Encoding: "chunked"`, " misspelt": "Transfer-Encoding: xchunked",
		" folded": "Transfer-Encoding:\r\n chunked", " with a vertical tab": "Transfer-Encoding: \vchunked", " with an underscore": "Transfer_Encoding: chunked",
		" nominated in Connection": "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
	} {
		requests["Content-Length and Transfer-Encoding"+name] = x.head("POST", whoamiPath, encoding+"\r\n"+length(len(zero))) + "\r\n" + zero
	}
	plain := x.head("POST", whoamiPath, "")
	requests["two Content-Lengths"] = plain + length(len(whoamiBody)) + length(len(whoamiBody)+len(inner)) + "\r\n" + whoamiBody + inner
	requests["two Content-Lengths in one"] = plain + fmt.Sprintf("Content-Length: %d, %d\r\n\r\n", len(whoamiBody), len(whoamiBody)) + whoamiBody + inner
	requests["a signed Content-Length"] = plain + fmt.Sprintf("Content-Length: +%d\r\n\r\n", len(whoamiBody)) + whoamiBody + inner
	requests["a request behind a body"] = x.text(whoamiPath, "") + inner
	requests["a GET with a body that is a request"] = x.head("GET", "/version", length(len(inner))) + "\r\n" + inner
	// What comes behind an upgrade that the server does not make is no request on the connection to it.
	for _, upgrade := range []string{"websocket", "spdy/3.1", "SPDY/3.1", "h2c", "TLS/1.0", "other"} {
		switching := "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + upgrade + "\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n" +
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
		for _, path := range []string{"/version", migrations} {
			requests["behind an upgrade to "+upgrade+" of "+path] = x.head("GET", path, switching) + "\r\n" + inner
			requests["with an upgrade to "+upgrade+" of "+path] = x.head("GET", path, switching+everything) + "\r\n"
		}
	}
	return tryAll(requests, x.http1)
}

// malformedHTTP2 is the same in HTTP/2, whose binary form allows what its rules do not.
func (x exchange) malformedHTTP2() map[string][]verdict {
	requests := map[string][]field{}
	for name, spell := range map[string]func(f field) field{
		"in capitals":            func(f field) field { return field{shouted + strings.ToUpper(f.name), f.value} },
		"in one capital":         func(f field) field { return field{shouted + f.name[:1] + strings.ToLower(f.name[1:]), f.value} },
		"with a blank":           func(f field) field { return field{f.name + " ", f.value} },
		"with a blank first":     func(f field) field { return field{" " + f.name, f.value} },
		"with a colon":           func(f field) field { return field{f.name + ":", f.value} },
		"as a pseudo-header":     func(f field) field { return field{":" + f.name, f.value} },
		"with NUL":               func(f field) field { return field{f.name + "\x00", f.value} },
		"with NUL in the value":  func(f field) field { return field{f.name, "\x00" + f.value} },
		"with a line feed":       func(f field) field { return field{f.name + "\n", f.value} },
		"in another's value":     func(f field) field { return field{"x-other", "a\r\n" + f.name + ": " + f.value} },
		"in another's value, LF": func(f field) field { return field{"x-other", "a\n" + f.name + ": " + f.value} },
		"in another's value, CR": func(f field) field { return field{"x-other", "a\r" + f.name + ": " + f.value} },
		"in another's name":      func(f field) field { return field{"x-other: a\r\n" + f.name, f.value} },
		"in a cookie":            func(f field) field { return field{"cookie", "a\r\n" + f.name + ": " + f.value} },
		"in the user agent":      func(f field) field { return field{"user-agent", x.agent + "\r\n" + f.name + ": " + f.value} },
		"in the authorization":   func(f field) field { return field{"authorization", "Basic\r\n" + f.name + ": " + f.value} },
		"with an empty name":     func(f field) field { return field{"", f.name + ": " + f.value} },
		"with a foreign letter":  func(f field) field { return field{f.name + "\xa0", f.value} },
	} {
		fields := x.pseudo(whoamiPath)
		for _, f := range forged {
			fields = append(fields, spell(f))
		}
		requests[name] = fields
	}
	add := func(name string, more ...field) {
		requests[name] = append(append(x.pseudo(whoamiPath), more...), forged...)
	}
	add("nominated in Connection", field{"connection", "x-remote-user, x-remote-group, x-id-state"})
	add("with Transfer-Encoding", field{"transfer-encoding", "chunked"})
	add("with an upgrade", field{"upgrade", "websocket"}, field{"connection", "upgrade"})
	add("with TE", field{"te", "trailers, x-remote-user"})
	add("with a second length", field{"content-length", "0"})
	add("with a second path", field{":path", "/version"})
	add("with a protocol", field{":protocol", "websocket"})
	add("with a second Host", field{"host", "other"})
	many := make([]field, 1000)
	for i := range many {
		many[i] = field{"x-other", "a"}
	}
	add("behind a thousand headers", many...)
	requests["before the pseudo-headers"] = append(append([]field{}, forged...), x.pseudo(whoamiPath)...)
	for i, name := range []string{"in the method", "in the scheme", "in the authority", "in the path"} {
		fields := x.pseudo(whoamiPath)
		fields[i].value += " HTTP/1.1\r\n" + lines(forged)
		requests[name] = fields
	}
	answers := tryAll(requests, func(fields []field) ([]verdict, error) {
		got, err := x.http2(fields, nil)
		return []verdict{got}, err
	})
	trailers := map[string][]field{"in trailers": forged, "in trailers with pseudo-headers": append([]field{{":path", whoamiPath}}, forged...)}
	for name, got := range tryAll(trailers, func(trailers []field) ([]verdict, error) {
		got, err := x.http2(x.pseudo(whoamiPath), trailers)
		return []verdict{got}, err
	}) {
		answers[name] = got
	}
	return answers
}

// tryAll makes every request, many at once: Envoy takes a second to end a connection. A connection that ends without an
// answer is a refusal.
func tryAll[R any](requests map[string]R, one func(R) ([]verdict, error)) map[string][]verdict {
	answers := map[string][]verdict{}
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(16)
	for name, request := range requests {
		g.Go(func() error {
			got, err := one(request)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				answers[name] = got
			}
			return nil
		})
	}
	_ = g.Wait() // nothing fails
	return answers
}
