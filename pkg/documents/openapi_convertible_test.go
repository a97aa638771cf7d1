package documents

import (
	"net/http"
	"strings"
	"testing"
)

// Where protobuf would cost far more memory than the document has bytes, there is none.
func TestADocumentOfTooManyValuesIsGivenAsJSONOnly(t *testing.T) {
	hostile := strings.TrimSuffix(schemaOf([]string{"/x"}, nil), "}") + `,"x-a":[0` + strings.Repeat(",0", maxConvertedValues) + `]}`
	o := openAPIOf(schemaServer{serves: "a.io/v1/r", v3: map[string]string{"apis/a.io/v1": hostile}, v2: hostile}, schemaServer{v2: `{"paths":{}}`})
	settled(t, o)
	for path, media := range map[string]string{"/openapi/v3/apis/a.io/v1": mediaProtobufV3, "/openapi/v2": mediaProtobufV2} {
		if w := fetched(t, o, path, "Accept", media); w.Code != http.StatusNotAcceptable {
			t.Errorf("%s: %d", path, w.Code)
		}
		w := fetched(t, o, path, "Accept", media+","+mediaJSON)
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != mediaJSON {
			t.Errorf("%s: %d %s", path, w.Code, w.Header().Get("Content-Type"))
		}
	}
	if text := `{"a":"` + strings.Repeat(`,[{\"`, 1_000_000) + `"}`; !convertible([]byte(text)) {
		t.Error("what stands in a string is counted")
	}
}
