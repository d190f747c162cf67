"""`SummarySubscriber`, with which other Python services read our events; plain aiokafka, without Faust."""
