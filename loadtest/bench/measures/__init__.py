"""What is measured of a proxy, one file each; `catalogue` names them, `subject` is what each is given.

Every measure returns samples by figure. Imported by `loadtest.bench`.
"""
