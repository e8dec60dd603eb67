"""nginx with one worker process, keep-alive to the worker and no buffering."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from loadtest.bench.proxies.entrant import Entrant, Missing, Place, Proxy, running
from loadtest.fleet.ports import free_ports

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
    binary = find_binary("nginx")
    if binary is None:
        return Missing("nginx", "not installed (apt install nginx)")
    said = subprocess.run([binary, "-v"], capture_output=True, text=True, check=False).stderr
    setup = "one worker process, proxy_buffering off, keep-alive upstream"

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port = free_ports(1)
        config = place.folder / "nginx.conf"
        config.write_text(_CONFIG.format(folder=place.folder, worker=place.worker_port, port=port))
        command = [binary, "-p", str(place.folder), "-c", str(config), "-e", str(place.folder / "error.log")]
        with running("nginx", command, port, place.folder) as process:
            yield Proxy("nginx", f"http://127.0.0.1:{port}", process.pid)

    return Entrant("nginx", said.strip().rpartition("/")[2], setup, start)


def find_binary(name: str) -> str | None:
    """Return the path of a program, also from folders that an ordinary user's PATH lacks."""
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))
