package xds

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zapgrpc"
	"google.golang.org/grpc/grpclog"
)

// UseLogger sends grpc-go's own log, which is one for the whole process, to log. Call it once, before anything else.
// Its informational messages tell of every connection; they are left out.
func UseLogger(log *zap.Logger) {
	grpclog.SetLoggerV2(zapgrpc.NewLogger(log.Named("grpc").WithOptions(zap.IncreaseLevel(zapcore.WarnLevel))))
}

// controlPlaneLog is go-control-plane's log: what it calls information is for those who develop it.
type controlPlaneLog struct{ *zap.SugaredLogger }

func (l controlPlaneLog) Debugf(format string, args ...any) { l.SugaredLogger.Debugf(format, args...) }
func (l controlPlaneLog) Infof(format string, args ...any)  { l.SugaredLogger.Debugf(format, args...) }
