"""The page: an HTTP API and a web page on it, served beside a node."""
