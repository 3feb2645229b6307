"""A scripted OpenAI-compatible model: for the demo, the benchmarks and the tests."""
