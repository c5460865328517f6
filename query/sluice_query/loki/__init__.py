"""The part of Loki's HTTP API that Grafana, its Logs Drilldown and `logcli` use to read."""
