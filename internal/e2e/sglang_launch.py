"""Starts SGLang's own router on the command line that it is given. Its launcher needs a web framework for a mode that is not used here."""

import argparse

from sglang_router.router import Router
from sglang_router.router_args import RouterArgs

parser = argparse.ArgumentParser()
RouterArgs.add_cli_args(parser, use_router_prefix=False, exclude_host_port=False)
Router.from_args(RouterArgs.from_cli_args(parser.parse_args(), use_router_prefix=False)).start()
