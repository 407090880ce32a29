"""Jobs in the trace of the application that enqueues them, by OpenTelemetry."""
