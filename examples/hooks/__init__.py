"""Hooks round a shop's tools: redaction, a budget and an audit log."""
