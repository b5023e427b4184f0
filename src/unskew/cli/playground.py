"""The verb playground: a shop that lives."""

import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from tyro.conf import Positional

from unskew.cli.serve import is_loopback, open_listener, require_packages
from unskew.cli.shared import File, notify
from unskew.core.config import AtLeast0
from unskew.core.errors import BadInput

if TYPE_CHECKING:
    import socket

    from unskew.playground.run import Nights
    from unskew.playground.shoppers import Shoppers


@dataclass(frozen=True, kw_only=True)
class Playground:
    """A shop that lives: a service, simulated users who react to its lists, a nightly update every minute,
    and a page on which a slider sets the debiasing strength. What is in FOLDER from before goes on."""

    folder: Positional[Annotated[Path, tyro.conf.arg(metavar="FOLDER")]] = Path("playground")
    """The folder of the shop: its log, its runs and its store."""
    port: int = 8001
    """The port of the page; 0 is any free one, which is printed."""
    host: str = "127.0.0.1"
    """The address of the page. Whoever reaches it can move the slider."""
    day: float = 2.0
    """Seconds that a day takes."""
    night: AtLeast0 = 30
    """Update the run after so many days; 0 is never."""
    visitors: int = 25
    """The number of users who come on a day."""
    debias: float = 0.0
    """The debiasing strength at the beginning, from 0 to 1."""
    days: int | None = None
    """Stop after so many days; by default it goes on until Ctrl-C."""
    only_create: bool = False
    """Make the shop in FOLDER, and stop."""
    service: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """The address of a running service of this shop, which others update; by default one is started."""
    token_file: File = None
    """The tokens of that service."""

    def run(self) -> None:
        """Make the shop if it is not there, and let it live."""
        if not 0 <= self.debias <= 1:
            raise BadInput(f"debias {self.debias:g}: expected from 0 to 1", field="debias")
        if self.day <= 0:
            raise BadInput(f"day {self.day:g}: expected more than 0 seconds", field="day")
        require_packages(mcp=False)
        from unskew.playground.run import Nights, client_of, service
        from unskew.playground.shop import Shop, ShopSettings
        from unskew.playground.shoppers import Client, Shoppers, ShopperSettings

        shop, settings = Shop(ShopSettings()), ShopperSettings(visitors=self.visitors)
        if not (self.folder / "current").is_symlink():
            notify(f"unskew: making a shop in {self.folder} (about a minute)")
        shop.create(self.folder)
        if self.only_create:
            return
        store = str(self.folder / "events.db")
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(contextlib.closing(open_listener(self.host, self.port)))
            nights = None
            if self.service is None:
                client = Client(stack.enter_context(service(self.folder, store)))
                nights = Nights(self.folder, store, self.night) if self.night else None
            else:
                client = client_of(self.service, self.token_file)
            self._live(Shoppers(shop, client, settings, self.debias), nights, listener)

    def _live(self, shoppers: "Shoppers", nights: "Nights | None", listener: "socket.socket") -> None:
        """Show the page while the days pass."""
        import uvicorn

        from unskew.playground.app import create_app
        from unskew.playground.run import live
        from unskew.serve.http.middleware import LOOPBACK

        hosts = (*LOOPBACK, self.host.lower()) if is_loopback(self.host) else None
        app = create_app(shoppers, shoppers.client.address, hosts)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none"))
        stop = threading.Event()

        def pass_days() -> None:
            live(shoppers, self.day, stop, self.days, nights, notify)
            server.should_exit = True

        host, port = listener.getsockname()[:2]
        notify(f"unskew: the shop is open: http://{host}:{port}")
        notify(f"unskew: its service: {shoppers.client.address}")
        days = threading.Thread(target=pass_days)
        days.start()
        try:
            with contextlib.suppress(KeyboardInterrupt):
                server.run(sockets=[listener])
        finally:
            stop.set()
            days.join()
        notify(f"unskew: closed; `unskew playground {self.folder}` goes on")
