"""Operations that change what is in force: policy, routes, limits, models, tenants, log level and revisions."""
