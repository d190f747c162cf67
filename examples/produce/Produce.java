import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class Produce {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> options = Map.of(
            "bootstrap.servers", System.getenv().getOrDefault("BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
            "acks", "all",
            "enable.idempotence", true);
        String conversation = "conversation-42";
        String message = """
            {"id": "java-1", "conversation_id": "conversation-42", "user_id": "user-7", "role": "user",
             "content": "Where is my order?"}""";
        try (var producer = new KafkaProducer<>(options, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>("messages", conversation, message)).get();
        }
    }
}
