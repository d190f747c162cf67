"""Plain aiokafka: the archiver, and the typed subscriber of other Python services."""
