"""The answers to all questions, gathered once and rendered three ways: terminal, HTML, JSON."""
