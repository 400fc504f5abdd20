"""A store served over the network: Arrow Flight for data, HTTP for people, scripts and browsers. See `docs/broker.md`."""
