"""Whether a release, a checkout or a release of tomorrow can be driven, runner by runner."""
