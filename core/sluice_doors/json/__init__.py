"""Doors whose bodies are JSON: lines, Elasticsearch, Splunk and Amazon Data Firehose."""
