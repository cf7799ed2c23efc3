"""Policies: loading, scoring, clipping, weights for the sampler, export."""
