"""Proxies that are one program with one configuration: one worker process or thread each, keep-alive on both sides."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench.frames import MODEL
from loadtest.bench.proxies.entrant import Entrant, NotInstalled, Place, Proxy, running
from loadtest.fleet.ports import free_ports


@dataclass(frozen=True, slots=True)
class Program:
    """One program: how to install it, its settings in a few words, its configuration and its arguments.

    The configuration and the arguments have fields for the `folder`, the `model`, the own `port` and that of the
    `worker`, and the arguments for the `config` file. `version` is the argument that prints the version, and
    `variables` are added to the environment.
    """

    install: str
    setup: str
    config: str
    arguments: str
    version: str = "--version"
    variables: Mapping[str, str] = field(default_factory=dict)


NGINX = Program(
    "apt install nginx",
    "one worker process, proxy_buffering off, keep-alive upstream",
    """
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
""",
    "-p {folder} -c {config} -e {folder}/error.log",
    "-v",
)
ENVOY = Program(
    "make peers-env",
    "one worker thread, no time limits",
    """
static_resources:
  listeners:
  - name: public
    address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: public
          stream_idle_timeout: 0s
          http_filters:
          - name: router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: /}}, route: {{cluster: workers, timeout: 0s}}}}]
  clusters:
  - name: workers
    type: STATIC
    circuit_breakers:
      thresholds: [{{max_connections: 16384, max_pending_requests: 16384, max_requests: 16384}}]
    load_assignment:
      cluster_name: workers
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {worker}}}}}}}
""",
    "-c {config} --concurrency 1 --disable-hot-restart -l error",
)
LITELLM = Program(
    "make peers-env",
    "proxy server, one worker process, no database, keys or retries",
    """
model_list:
- model_name: {model}
  litellm_params: {{model: hosted_vllm/{model}, api_base: "http://127.0.0.1:{worker}/v1", api_key: none}}
litellm_settings: {{num_retries: 0, telemetry: false}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
""",
    "--config {config} --host 127.0.0.1 --port {port} --num_workers 1 --telemetry False",
    # What its production guide recommends, and no download of prices at the start.
    variables={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION"},
)
PROGRAMS: Mapping[str, Program] = {"nginx": NGINX, "envoy": ENVOY, "litellm": LITELLM}


def installed(name: str, environment: Path) -> Entrant:
    """Return the proxy if its program is installed, on PATH or in `environment`.

    Raises:
        NotInstalled: it is not.
    """
    program = PROGRAMS[name]
    # An ordinary user's PATH lacks the last two folders.
    folders = (os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", str(environment.absolute() / "bin"))
    binary = shutil.which(name, path=os.pathsep.join(folders))
    if binary is None:
        raise NotInstalled(f"not installed ({program.install})")
    variables = {**os.environ, **program.variables}
    said = subprocess.run([binary, program.version], capture_output=True, text=True, check=False, env=variables)
    found = re.search(r"[/ ](\d+\.\d+\.\d+)", said.stdout + said.stderr)

    @contextmanager
    def start(place: Place) -> Iterator[Proxy]:
        port, config = free_ports(1), place.folder / f"{name}.yaml"
        fields = {"folder": place.folder, "port": port, "worker": place.ports[0], "config": config, "model": MODEL}
        config.write_text(program.config.format(**fields))
        arguments = [word.format(**fields) for word in program.arguments.split()]
        with running(name, [binary, *arguments], port, place.folder, program.variables) as process:
            yield Proxy(name, f"http://127.0.0.1:{port}", process.pid, place.worker_urls[0])

    return Entrant(name, found[1] if found else "?", program.setup, start)
