package lua

// UnknownGuard is the script that turns the local server's "no such API" into a 503 while not every server was read. It
// belongs on the routes of an incomplete table (LuaPerRoute).
func UnknownGuard() string {
	c := Config{}
	// The fallback chain's guard, without an identity of its own before it.
	return c.script([]string{"pem.lua", "classify.lua", "guard.lua"}) + "function envoy_on_request(_) end\n" + part("fallback.lua")
}

func part(name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err) // embedded: cannot be missing
	}
	return string(text)
}
