"""Events and what is made of them: traces, metrics, log lines."""
