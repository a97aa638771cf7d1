package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// keyDelimiter separates a key's parts inside viper. Not a dot, which addresses as keys contain ("10.0.0.11": cp-1),
// and not "::", which IPv6 addresses contain.
const keyDelimiter = "/"

// Load reads the configuration: flags that were given, then the environment, then the file, then defaults. fs must
// hold what AddFlags defines, and be parsed.
func Load(fs *pflag.FlagSet) (Config, error) {
	v := viper.NewWithOptions(viper.KeyDelimiter(keyDelimiter))
	// Each key is bound by name, so viper's ExperimentalBindStruct has nothing left to find.
	for _, s := range settings {
		key := strings.ReplaceAll(s.key, ".", keyDelimiter)
		v.SetDefault(key, s.value)
		if err := errors.Join(v.BindEnv(key, s.env()), v.BindPFlag(key, fs.Lookup(s.flag))); err != nil {
			return Config{}, fmt.Errorf("binding %s: %w", s.key, err)
		}
	}
	file, err := configFile(fs)
	if err != nil {
		return Config{}, err
	}
	if file != "" {
		v.SetConfigFile(file)
		if err := v.ReadInConfig(); err != nil {
			return Config{}, fmt.Errorf("reading the configuration file %s: %w", file, oneLine(err))
		}
		if err := unknownKeys(v, file); err != nil {
			return Config{}, err
		}
	}
	var c Config
	if err := v.UnmarshalExact(&c, strict); err != nil {
		return Config{}, fmt.Errorf("reading the configuration%s: %w", in(file), oneLine(err))
	}
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("invalid configuration%s: %w", in(file), err)
	}
	return c, nil
}

func in(file string) string {
	if file == "" {
		return ""
	}
	return " (file " + file + ")"
}

// configFile is the path given by --config or XDS_SERVER_CONFIG, and empty if none was.
func configFile(fs *pflag.FlagSet) (string, error) {
	file, err := fs.GetString(configFlag)
	if err != nil {
		return "", fmt.Errorf("reading --%s: %w", configFlag, err)
	}
	if !fs.Changed(configFlag) {
		file = os.Getenv(EnvPrefix + strings.ToUpper(configFlag))
	}
	return file, nil
}

// unknownKeys is what UnmarshalExact says too, but in the user's words: with the file's name and the nearest help.
func unknownKeys(v *viper.Viper, file string) error {
	known := map[string]bool{}
	for _, s := range settings {
		known[strings.ToLower(strings.ReplaceAll(s.key, ".", keyDelimiter))] = true
	}
	var unknown []string
	for _, key := range v.AllKeys() {
		if !known[key] {
			unknown = append(unknown, strings.ReplaceAll(key, keyDelimiter, "."))
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	return fmt.Errorf("configuration file %s: unknown key %s; xds-server serve --help lists what there is",
		file, strings.Join(unknown, ", "))
}

// strict makes decoding exact: a value of another type is an error and not a guess, since "pollInterval: 5" would
// otherwise be 5 ns. Only strings are converted, because flags and the environment have nothing else.
func strict(dc *mapstructure.DecoderConfig) {
	dc.WeaklyTypedInput = false
	dc.DecodeHook = mapstructure.ComposeDecodeHookFunc(
		durations,
		servers,
		stringMaps,
		mapstructure.StringToSliceHookFunc(","),
		mapstructure.StringToBasicTypeHookFunc(),
	)
}

func durations(_, to reflect.Type, data any) (any, error) {
	if to != reflect.TypeFor[time.Duration]() {
		return data, nil
	}
	switch v := data.(type) {
	case time.Duration:
		return v, nil
	case string:
		d, err := time.ParseDuration(v)
		if err != nil {
			return nil, fmt.Errorf("%q is not a duration: write a number and a unit, as 2s or 1h", v)
		}
		return d, nil
	default:
		return nil, fmt.Errorf("%v is not a duration: write a number and a unit, as 2s or 1h", v)
	}
}

// servers reads the flag's form of a server: name=host:port, with /direct behind it for a kube-apiserver's own port.
func servers(from, to reflect.Type, data any) (any, error) {
	if to != reflect.TypeFor[Server]() || from.Kind() != reflect.String {
		return data, nil
	}
	text := reflect.ValueOf(data).String()
	name, address, ok := strings.Cut(text, "=")
	if !ok {
		return nil, fmt.Errorf("server %q is not name=host:port", text)
	}
	address, direct := strings.CutSuffix(address, "/direct")
	return Server{Name: strings.TrimSpace(name), Address: strings.TrimSpace(address), Direct: direct}, nil
}

// stringMaps reads the environment's form of a map: key=value,key=value.
func stringMaps(from, to reflect.Type, data any) (any, error) {
	if to != reflect.TypeFor[map[string]string]() || from.Kind() != reflect.String {
		return data, nil
	}
	out := map[string]string{}
	for part := range strings.SplitSeq(reflect.ValueOf(data).String(), ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return nil, fmt.Errorf("%q is not key=value", part)
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("%q is given twice", key)
		}
		out[key] = value
	}
	return out, nil
}

// oneLine folds an error of several lines, as the YAML and mapstructure packages write them, into one.
func oneLine(err error) error {
	text := strings.Join(strings.Fields(err.Error()), " ")
	text = strings.ReplaceAll(text, "decoding failed due to the following error(s): ", "")
	return &folded{text: text, err: err}
}

type folded struct {
	text string
	err  error
}

func (f *folded) Error() string { return f.text }
func (f *folded) Unwrap() error { return f.err }
