"""How estimates learn: averages, sums and fits that forget, and a test for a lasting change. Synchronous and pure.

An estimator in `router.placement` is a declaration over these: which quantity, how much of the past counts. Each class
learns from one observation at a time in constant memory. Imported by `router.placement` alone.
"""
