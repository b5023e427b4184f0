"""The HTTP service: routes, request and answer schemas, middleware, metrics."""
