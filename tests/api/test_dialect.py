"""Routes are found by method and path, parameters included."""

from __future__ import annotations

from headway.api.dialect import RouteTable


def test_a_parameter_is_one_segment_of_the_path() -> None:
    routes = RouteTable[str]()
    routes.add("GET", "/v1/models", "all")
    routes.add("GET", "/v1/models/{model}", "one")
    routes.add("POST", "/v1/models/{model}:generate", "generate")
    assert routes.find("GET", "/v1/models") == ("all", {})
    assert routes.find("GET", "/v1/models/a.b-c") == ("one", {"model": "a.b-c"})
    assert routes.find("POST", "/v1/models/m:generate") == ("generate", {"model": "m"})
    for method, path in [("GET", "/v1/models/"), ("GET", "/v1/models/a/b"), ("POST", "/v1/models"), ("GET", "/v2")]:
        assert routes.find(method, path) == (None, {})
    assert len(routes.names) == 3
