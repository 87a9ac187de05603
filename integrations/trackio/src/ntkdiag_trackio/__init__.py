"""Kernel diagnostics of ntkdiag in Trackio."""

from ntkdiag_trackio.writer import TrackioWriter as TrackioWriter
