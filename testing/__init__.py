"""Holds a test suite to what its programs may do on their devices: a plugin for pytest."""
