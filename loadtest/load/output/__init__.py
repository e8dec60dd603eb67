"""What a run shows: `figures` as JSON with vllm bench's keys, tables and files in `report`, and a `page` with plots."""
