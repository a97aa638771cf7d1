package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"xds-server/test/lab"
)

// An Object is something that can be created, so that a watch has something to tell.
type Object struct {
	// Collection is the path of the objects of its kind, for example /api/v1/namespaces/default/configmaps.
	Collection string
	Name       string
	JSON       string
}

// WebsocketWatch watches an object's collection over a websocket as the user, creates the object as the administrator,
// and reads the event. It does so with the credential as it is and, for a token, with the token as a websocket
// subprotocol, which is how a browser sends it.
func (s Streams) WebsocketWatch(ctx context.Context, o Object) StreamResult {
	r := StreamResult{Name: "watch of " + o.Collection + " over a websocket"}
	dialers := []websocket.Dialer{{TLSClientConfig: s.Lab.TLS(s.Credential)}}
	headers := []http.Header{s.websocketHeader()}
	s.Credential.Set(headers[0])
	if token := s.Credential.Token; token != "" {
		dialers = append(dialers, websocket.Dialer{
			TLSClientConfig: s.Lab.TLS(lab.Anonymous),
			Subprotocols:    []string{"base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token)), "base64.binary.k8s.io"},
		})
		headers = append(headers, s.websocketHeader())
	}
	for i, dialer := range dialers {
		r.Requests++
		if err := s.websocketWatch(ctx, &dialer, headers[i], o); err != nil {
			r.Err = errors.Join(r.Err, err)
		}
	}
	return r
}

// websocketHeader is a header as a browser sends it: a server refuses a watch without an origin, with a bare 403.
func (s Streams) websocketHeader() http.Header {
	return http.Header{"Origin": {"https://localhost"}, "User-Agent": {s.UserAgent}}
}

func (s Streams) websocketWatch(ctx context.Context, dialer *websocket.Dialer, header http.Header, o Object) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()

	address := strings.Replace(s.URL, "https://", "wss://", 1) + o.Collection + "?watch=true&fieldSelector=metadata.name%3D" + o.Name
	conn, response, err := dialer.DialContext(ctx, address, header)
	if err != nil {
		return refusal(err, response)
	}
	defer conn.Close() //nolint:errcheck // the event is what counts
	if err := s.create(ctx, o); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.remove(ctx, o)) }()
	deadline, _ := ctx.Deadline()
	conn.SetReadDeadline(deadline) //nolint:errcheck // never fails
	_, message, err := conn.ReadMessage()
	if err != nil {
		return fmt.Errorf("wait for the event: %w", err)
	}
	return isCreation(message, o.Name)
}

func isCreation(message []byte, name string) error {
	var event struct {
		Type   string
		Object struct{ Metadata struct{ Name string } }
	}
	if err := json.Unmarshal(message, &event); err != nil {
		return fmt.Errorf("read the event %q: %w", message, err)
	}
	if event.Type != "ADDED" || event.Object.Metadata.Name != name {
		return fmt.Errorf("got the event %.200q, not the creation of %s", message, name)
	}
	return nil
}

// create and remove do so as the administrator.
func (s Streams) create(ctx context.Context, o Object) error {
	return s.asAdmin(ctx, http.MethodPost, o.Collection, o.JSON, http.StatusCreated)
}

func (s Streams) remove(ctx context.Context, o Object) error {
	return s.asAdmin(ctx, http.MethodDelete, o.Collection+"/"+o.Name, "", http.StatusOK)
}

func (s Streams) asAdmin(ctx context.Context, method, path, body string, status int) error {
	client := s.Lab.Client(s.Lab.Admin(), lab.HTTP2)
	defer client.CloseIdleConnections()
	a, err := lab.Call(ctx, client, method, s.URL+path, body, nil)
	if err == nil && a.Status != status {
		err = fmt.Errorf("%s %s: answered %d, want %d: %s", method, path, a.Status, status, a.Body)
	}
	return err
}

// WebsocketWatchRefused is for a user who may not watch: nothing but the server's own refusal will do.
func (s Streams) WebsocketWatchRefused(ctx context.Context, collection string, status int) StreamResult {
	r := StreamResult{Name: fmt.Sprintf("watch of %s over a websocket is refused with %d", collection, status), Requests: 1}
	header := s.websocketHeader()
	s.Credential.Set(header)
	dialer := websocket.Dialer{TLSClientConfig: s.Lab.TLS(s.Credential)}
	conn, response, err := dialer.DialContext(ctx, strings.Replace(s.URL, "https://", "wss://", 1)+collection+"?watch=true", header)
	if err == nil {
		conn.Close() //nolint:errcheck // not wanted
		r.Err = errors.New("it was let in")
	} else if err := refusal(err, response); response == nil || response.StatusCode != status || !strings.Contains(err.Error(), `"kind":"Status"`) {
		r.Err = err
	}
	return r
}

func refusal(err error, response *http.Response) error {
	if response == nil {
		return fmt.Errorf("open the websocket: %w", err)
	}
	body, _ := io.ReadAll(response.Body) // gorilla keeps its beginning
	return fmt.Errorf("open the websocket: %w: %s: %s", err, response.Status, body)
}

// bulkObjects of nearly the size that etcd takes make lists far larger than any buffer.
const (
	bulkObjects = 16
	bulkSize    = 1 << 20
)

// Bulk uploads many large objects, updates and reads each, and lists them all at once, over one version of HTTP. All
// bytes have to be the same. An upload that is too large for a server has to get that server's own refusal.
func (s Streams) Bulk(ctx context.Context, protocol lab.Protocol) StreamResult {
	r := StreamResult{Name: fmt.Sprintf("uploads and lists of %d MB over HTTP/%d", bulkObjects*bulkSize>>20, protocol)}
	client := s.Lab.Client(s.Credential, protocol)
	defer client.CloseIdleConnections()
	r.Err = s.bulk(ctx, client, func() { r.Requests++ }, fmt.Sprintf("bulk-http%d", protocol))
	return r
}

func (s Streams) bulk(ctx context.Context, client *http.Client, count func(), prefix string) (err error) {
	collection := s.URL + "/api/v1/namespaces/" + s.Namespace + "/configmaps"
	call := func(method, address, body string, want int) (*lab.Answer, error) {
		count()
		a, err := lab.Call(ctx, client, method, address, body, nil)
		if err != nil {
			return nil, err
		}
		if a.Status != want {
			return nil, fmt.Errorf("%s %s: answered %d, want %d: %.500s", method, address, a.Status, want, a.Body)
		}
		return a, nil
	}
	selector := "?labelSelector=bulk%3D" + prefix
	defer func() {
		_, deleted := call(http.MethodDelete, collection+selector, "", http.StatusOK)
		err = errors.Join(err, deleted)
	}()

	sums := map[string][sha256.Size]byte{}
	for i := range bulkObjects {
		name := fmt.Sprintf("%s-%d", prefix, i)
		data := base64.StdEncoding.EncodeToString(randomBytes(bulkSize * 3 / 4))
		sums[name] = sha256.Sum256([]byte(data))
		object := func(data string) string {
			return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{"bulk":%q}},"data":{"data":%q}}`, name, prefix, data)
		}
		if _, err := call(http.MethodPost, collection, object("first"), http.StatusCreated); err != nil {
			return err
		}
		if _, err := call(http.MethodPut, collection+"/"+name, object(data), http.StatusOK); err != nil {
			return err
		}
	}
	a, err := call(http.MethodGet, collection+selector, "", http.StatusOK)
	if err != nil {
		return err
	}
	if err := sameObjects(a.Body, sums); err != nil {
		return err
	}
	_, err = call(http.MethodPost, collection, strings.Repeat(" ", 4<<20)+"{}", http.StatusRequestEntityTooLarge)
	return err
}

func sameObjects(list []byte, sums map[string][sha256.Size]byte) error {
	var got struct {
		Items []struct {
			Metadata struct{ Name string }
			Data     struct{ Data string }
		}
	}
	if err := json.Unmarshal(list, &got); err != nil {
		return fmt.Errorf("read a list of %d bytes: %w", len(list), err)
	}
	if len(got.Items) != len(sums) {
		return fmt.Errorf("%d objects are listed, want %d", len(got.Items), len(sums))
	}
	for _, item := range got.Items {
		if sha256.Sum256([]byte(item.Data.Data)) != sums[item.Metadata.Name] {
			return fmt.Errorf("the bytes of %s have changed on the way", item.Metadata.Name)
		}
	}
	return nil
}
