"""The mesh: how agents find each other and share modules, with no server."""
