package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/client-go/tools/remotecommand"

	"xds-server/test/lab"
	"xds-server/test/streamer"
)

// Logs follows a log over one version of HTTP and takes each line as it is written, for a time. Something on the way
// that buffers would hold lines back; a limit on the time of a request would end it.
func (s Streams) Logs(ctx context.Context, protocol lab.Protocol, d time.Duration) StreamResult {
	return StreamResult{
		Name:     fmt.Sprintf("log followed for %s over HTTP/%d", d, protocol),
		Requests: 1, Err: s.logs(ctx, protocol, d),
	}
}

func (s Streams) logs(ctx context.Context, protocol lab.Protocol, d time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	body, leave, err := s.get(ctx, protocol, s.podPath()+"/log?follow=true&tailLines=1")
	if err != nil {
		return err
	}
	defer leave()
	// The stand-in kubelet writes a line every 50 ms.
	late := time.AfterFunc(5*time.Second, cancel)
	defer late.Stop()
	lines := bufio.NewScanner(body)
	begin := time.Now()
	for n := 1; time.Since(begin) < d; n++ {
		if !lines.Scan() {
			return fmt.Errorf("no line %d after %s: %w", n, time.Since(begin), errors.Join(lines.Err(), ctx.Err()))
		}
		if err := want(nil, lines.Text(), streamer.LogLine(n)); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		late.Reset(2 * time.Second)
	}
	return nil
}

// Idle opens watches and commands, leaves them silent for a time, and then finds each of them working.
func (s Streams) Idle(ctx context.Context, d time.Duration, o Object) StreamResult {
	r := StreamResult{Name: fmt.Sprintf("streams left silent for %s", d)}
	silence := time.NewTimer(d)
	defer silence.Stop()
	over := make(chan struct{})
	checks := []func() error{
		func() error { return s.idleWatch(ctx, lab.HTTP1, over, o) },
		func() error { return s.idleWatch(ctx, lab.HTTP2, over, o) },
	}
	for _, upgrade := range Upgrades {
		checks = append(checks, func() error { return s.idleExec(ctx, upgrade, over) })
	}
	results := make(chan error, len(checks))
	for _, check := range checks {
		go func() { results <- check() }()
	}
	select {
	case <-silence.C:
		close(over)
		r.Err = s.create(ctx, o)
	case <-ctx.Done():
		close(over)
	}
	for range checks {
		r.Requests++
		r.Err = errors.Join(r.Err, <-results)
	}
	r.Err = errors.Join(r.Err, s.remove(ctx, o))
	return r
}

func (s Streams) idleWatch(ctx context.Context, protocol lab.Protocol, over <-chan struct{}, o Object) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	body, leave, err := s.get(ctx, protocol, o.Collection+"?watch=true&fieldSelector=metadata.name%3D"+o.Name)
	if err != nil {
		return err
	}
	defer leave()
	// An event before the silence is over, or the stream's end, is seen as well as its absence afterwards.
	events := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(body).ReadBytes('\n')
		if err == nil {
			err = isCreation(line, o.Name)
		}
		events <- err
	}()
	select {
	case err := <-events:
		return fmt.Errorf("watch over HTTP/%d did not stay silent: %w", protocol, err)
	case <-over:
	}
	select {
	case err := <-events:
		if err != nil {
			return fmt.Errorf("watch over HTTP/%d after its silence: %w", protocol, err)
		}
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("watch over HTTP/%d: no event after its silence", protocol)
	}
}

func (s Streams) idleExec(ctx context.Context, upgrade string, over <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stdin, write := io.Pipe()
	read, stdout := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := s.stream(ctx, upgrade, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout}, "cat")
		stdout.CloseWithError(errors.Join(err, io.EOF)) //nolint:errcheck // never fails
		stdin.CloseWithError(errors.Join(err, io.EOF))  //nolint:errcheck // never fails
		ended <- err
	}()
	lines := bufio.NewScanner(read)
	for _, line := range []string{"before", "after"} {
		if _, err := fmt.Fprintln(write, line); err != nil {
			return fmt.Errorf("exec over %s, %s its silence: %w", upgrade, line, err)
		}
		if !lines.Scan() || lines.Text() != line {
			return fmt.Errorf("exec over %s, %s its silence: got %q (%w)", upgrade, line, lines.Text(), errors.Join(lines.Err(), io.ErrUnexpectedEOF))
		}
		<-over
	}
	write.Close() //nolint:errcheck // never fails
	return <-ended
}

// get opens a response that streams.
func (s Streams) get(ctx context.Context, protocol lab.Protocol, path string) (body io.Reader, leave func(), err error) {
	client := s.Lab.Client(s.Credential, protocol)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	if err != nil {
		return nil, nil, err
	}
	if s.UserAgent != "" {
		request.Header.Set("User-Agent", s.UserAgent)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, nil, err
	}
	leave = func() {
		response.Body.Close() //nolint:errcheck // read as far as wanted
		client.CloseIdleConnections()
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body) // the status says enough
		leave()
		return nil, nil, fmt.Errorf("GET %s: %s: %s", path, response.Status, text)
	}
	return response.Body, leave, nil
}
