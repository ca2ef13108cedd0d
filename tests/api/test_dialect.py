"""Routes are found by method and path, parameters included; and what is said of an engine that fails."""

from __future__ import annotations

import msgspec

from headway.api.dialect import RouteTable, failure_in_stream


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


def test_a_last_parameter_can_be_the_rest_of_the_path() -> None:
    routes = RouteTable[str]()
    routes.add("GET", "/v1/models/{model*}", "one")
    assert routes.find("GET", "/v1/models/org/name.v1") == ("one", {"model": "org/name.v1"})
    assert routes.find("GET", "/v1/models/") == (None, {})


def test_the_methods_of_a_path() -> None:
    routes = RouteTable[str]()
    routes.add("GET", "/v1/models", "all")
    routes.add("GET", "/v1/models/{model}", "one")
    routes.add("DELETE", "/v1/models/{model}", "delete")
    assert routes.methods("/v1/models") == ["GET"]
    assert routes.methods("/v1/models/m") == ["GET", "DELETE"]
    assert routes.methods("/v1") == []


def test_an_engines_words_are_one_short_line_of_the_log() -> None:
    words = "no room\n2026-11-16 WARNING headway.gateway: all is lost\x00" + "x" * 10_000
    failure = failure_in_stream(msgspec.json.encode({"error": {"message": words}}), has_begun=True)
    assert str(failure).isprintable()
    assert len(str(failure)) < 300
