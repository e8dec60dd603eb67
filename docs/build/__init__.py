"""What is generated from code: ``python -m docs.build`` writes all files of `docs.build.pages.pages`.

Nothing of the product imports this package, and no wheel contains it.
"""
