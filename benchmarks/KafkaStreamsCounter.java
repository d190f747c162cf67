import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;

/** A counter per key on Kafka Streams, exactly once (v2), one thread; everything else as Kafka Streams has it. */
public final class KafkaStreamsCounter {
    private static final ObjectReader JSON = new ObjectMapper().reader();

    public static void main(String[] arguments) {
        Map<String, String> bench = System.getenv();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(bench.get("BENCH_SOURCE"), Consumed.with(Serdes.ByteArray(), Serdes.ByteArray()))
            .mapValues(KafkaStreamsCounter::amount)
            .groupByKey(Grouped.with(Serdes.ByteArray(), Serdes.Long()))
            .reduce(Long::sum, Materialized.as("totals"));
        KafkaStreams streams = new KafkaStreams(builder.build(), properties(bench));
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static long amount(byte[] value) {
        try {
            return JSON.readTree(value).get("amount").asLong();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static Properties properties(Map<String, String> bench) {
        Properties properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, bench.get("BENCH_GROUP"));
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bench.get("BENCH_BOOTSTRAP"));
        properties.put(StreamsConfig.STATE_DIR_CONFIG, bench.get("BENCH_STATE"));
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class);
        properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.LongSerde.class);
        properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        return properties;
    }
}
