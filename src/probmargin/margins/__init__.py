"""Margins: how safe is each example? One file a measure."""
