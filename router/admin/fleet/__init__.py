"""Operations on workers, their sources and the other gateways."""
