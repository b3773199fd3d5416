"""External agents, which are programs that speak the Agent Client Protocol on stdin and stdout."""
