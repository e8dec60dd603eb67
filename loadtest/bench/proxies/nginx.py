"""nginx with one worker process, keep-alive to the worker and no buffering."""

from __future__ import annotations

from loadtest.bench.proxies.entrant import Entrant, Missing, Place
from loadtest.bench.proxies.installed import installed

_CONFIG = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log warn;
events {{ worker_connections 16384; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 1000000;
  upstream workers {{ server 127.0.0.1:{worker}; keepalive 4096; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://workers; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 3600s;
    }}
  }}
}}
"""


def found() -> Entrant | Missing:
    """Return nginx if it is installed."""
    setup = "one worker process, proxy_buffering off, keep-alive upstream"
    return installed("nginx", "apt install nginx", setup, _arguments)


def _arguments(place: Place, port: int) -> list[str]:
    config = place.folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=place.folder, worker=place.worker_port, port=port))
    return ["-p", str(place.folder), "-c", str(config), "-e", str(place.folder / "error.log")]
