"""Headway beside other gateways."""
