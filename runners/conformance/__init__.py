"""Conformance: can a release, a checkout or a release of tomorrow be driven, runner by runner?"""
